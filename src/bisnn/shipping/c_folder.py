"""What surrounds the exported source: an example of its use, build files, and a README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bisnn.packed.network import PackedNetwork
from bisnn.shipping import c_sets
from bisnn.shipping.c_text import filled, indented, is_whole, output_type, result_name


class Usage(NamedTuple):
    """Lines of an example in C."""

    variables: Sequence[str] = ()
    start: Sequence[str] = ()  # before a recording
    step: Sequence[str] = ()  # of a time step
    end: Sequence[str] = ()
    helpers: str = ""  # functions


FLOAT_ODDITIES = """\
- A product of floats passes an operation on integers, whose other operand is a `volatile` zero,
  before it is added to: otherwise compilers may fuse the two, and round once where training rounded
  twice.
"""


def stream_program(network: PackedNetwork, name: str, steps: int, each_step: bool = False) -> str:
    """An example that feeds the network from a sensor and says what it makes of it: of a recording,
    or at each time step.
    """
    upper, argument = name.upper(), ""
    sensor = filled("sensor.c.in", NAME=upper, steps=steps)
    if network.sets is not None and c_sets.encodings(network) == 1:
        example = _deciding(name)
    elif network.outputs:
        example = _predicting(network, name, each_step)
    else:
        example = _counting(network, name)
    variables, start, step, end, helpers = example
    draws = bool(network.encoding) and c_sets.encodings(network) > 1
    if network.encoding:
        argument, sensor = "&encoder, ", filled("sensor_points.c.in", name=name, NAME=upper)
        more = ["uint32_t draw;"] if draws else []
        variables = [f"static {name}_encoder encoder;", *variables, *more]
        encode = f"{name}_encode_start(&encoder, golden_points, {'draw' if draws else 0})"
        start = [*start, f"if ({encode}) /* here a golden point */", "    return 1;"]
    recordings = [
        *start,
        f"{name}_reset(&state);",
        f"for (t = 0; read_sensor({argument}t, x); t++) {{",
        *indented(step),
        "}",
    ]
    if draws:
        loop = f"for (draw = 0; draw < {upper}_ENCODINGS; draw++) {{"
        recordings = [loop, *indented(recordings), "}"]
    lines = {"variables": variables, "recordings": recordings, "end": end}
    return filled(
        "stream.c.in",
        name=name,
        NAME=upper,
        math="#include <math.h>\n" if helpers else "",
        sensor=sensor,
        helpers=helpers,
        **{key: "".join(f"{line}\n" for line in indented(some)) for key, some in lines.items()},
    )


def _counting(network: PackedNetwork, name: str) -> Usage:
    """For a network without a readout."""
    last = len(network.layers) - 1
    printed = f'printf("%08lx\\n", (unsigned long)state.s{last}[0][0]);'
    return Usage(step=[f"{name}_step(&state, x, NULL);", printed])


def _deciding(name: str) -> Usage:
    """For one with prediction sets, which stops early."""
    return Usage(
        [f"static {name}_decision decision;", "size_t c;"],
        [f"{name}_decision_reset(&decision);"],
        [
            f"{name}_step(&state, x, NULL);",
            f"if ({name}_decided(&decision, &state)) /* no more time steps are needed */",
            "    break;",
        ],
        [
            'printf("after %lu time steps:", (unsigned long)decision.steps);',
            f"for (c = 0; c < {name.upper()}_OUTPUTS; c++)",
            "    if (decision.set[c / 32] >> c % 32 & 1)",
            '        printf(" %lu", (unsigned long)c);',
            'printf("\\n");',
        ],
    )


def _predicting(network: PackedNetwork, name: str, each_step: bool) -> Usage:
    """For one that predicts: the mean over members and the time steps after the burn-in, of
    probabilities or of the targets; or that of each such time step.
    """
    upper, result = name.upper(), result_name(network)
    logit = f"{upper}_LOGIT_SCALE * (float){result}[%s]" if is_whole(network) else f"{result}[%s]"
    if network.task == "classification":
        about = {"result": result, "output": output_type(network), "logit": logit % "c"}
        helpers = filled("softmax.c.in", NAME=upper, **about)
        add = [f"add_softmax(sums, {result} + k * {upper}_OUTPUTS);"]
        said = [
            f"for (best = 0, k = 1; k < {upper}_OUTPUTS; k++)",
            "    if (sums[k] > sums[best])",
            "        best = k;",
            'printf("class %lu, %.0f %% sure\\n", (unsigned long)best, '
            "100 * (double)sums[best] / count);",
        ]
    else:
        helpers = ""
        add = [
            f"for (c = 0; c < {upper}_OUTPUTS; c++)",
            f"    sums[c] += {logit % f'k * {upper}_OUTPUTS + c'};",
        ]
        mean = "(double)sums[c] / count"
        said = [
            f"for (c = 0; c < {upper}_OUTPUTS; c++)",
            f'    printf("%g\\n", {upper}_TARGET_MEAN + {upper}_TARGET_SCALE * {mean});',
        ]
    variables = [
        f"static {output_type(network)} {result}[{upper}_MEMBERS * {upper}_OUTPUTS];",
        f"static float sums[{upper}_OUTPUTS];",
        f"size_t k, {'best' if helpers else 'c'};",
        "unsigned count = 0;",
    ]
    step = [
        f"{name}_step(&state, x, {result});",
        f"if (t + 1 <= {upper}_BURN_IN)",
        "    continue;",
        f"for (k = 0; k < {upper}_MEMBERS; k++, count++)",
        *indented(add),
    ]
    if each_step:
        return Usage(variables, [], [*step, *said, *START_ANEW], helpers=helpers)
    none = ["if (count == 0)", "    return 1; /* all of it was burn-in */"]
    return Usage(variables, [], step, [*none, *said], helpers)


START_ANEW = ["memset(sums, 0, sizeof sums);", "count = 0;"]


def makefile(network: PackedNetwork, name: str) -> str:
    encoder = f" {name}_encode.o" if network.encoding else ""
    return filled("Makefile.in", name=name, encoder=encoder)


def cmake_lists(network: PackedNetwork, name: str) -> str:
    encoder = f" {name}_encode.c" if network.encoding else ""
    return filled("CMakeLists.txt.in", name=name, encoder=encoder)


def readme(network: PackedNetwork, name: str, sizes: dict[str, int]) -> str:
    """How to build and call it, and what is guaranteed."""
    whole, result = is_whole(network), result_name(network)
    points = " after `NAME_encode_start` and `NAME_encode_step` made a point its bits"
    decision = ", and `NAME_decision_reset(&decision)`," if network.sets is not None else ""
    lines = [
        f"1. `NAME_reset(&state)`{decision} before the first time step of a recording.",
        f"2. `NAME_step(&state, x, {result})` at each time step"
        f"{points if network.encoding else ''}.",
    ]
    if network.sets is not None:
        lines.append(
            "3. `NAME_decided(&decision, &state)` after it: 1 once the prediction set is as small "
            "as was asked for."
        )
    arithmetic = "No operation from the input's bits to the counts is one on floats."
    if not whole:
        arithmetic = (
            "`-ffast-math`, which changes float arithmetic, is refused by `#error`; do not use "
            "options that it consists of either, such as `-fassociative-math`."
        )
    encoder = f"| `{name}_encode.c` | makes spikes of points, in doubles |\n"
    own = [f"`{name}.c`", f"`{name}_encode.c`", f"`{name}.h`"]
    needed = own if network.encoding else [own[0], own[2]]
    members = "one set of weights" if network.count == 1 else f"{network.count} members"
    return filled(
        "README.md.in",
        name=name,
        members=members,
        encoder=encoder if network.encoding else "",
        needed=f"{', '.join(needed[:-1])} and {needed[-1]}",
        answer=", and how its outputs become a prediction" if network.outputs else "",
        api="\n".join(lines).replace("NAME_", f"{name}_") + "\n",
        result=result,
        float="" if whole else " and rounds floats as IEEE 754 says",
        arithmetic=arithmetic,
        oddities="" if whole else FLOAT_ODDITIES,
        flash=f"{sizes['flash']:,}",
        ram=f"{sizes['ram']:,}",
    )
