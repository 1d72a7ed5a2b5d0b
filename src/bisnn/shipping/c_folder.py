"""What surrounds the exported source: an example of its use, build files, and a README."""

from __future__ import annotations

from bisnn.packed.network import PackedNetwork
from bisnn.shipping import c_sets
from bisnn.shipping.c_text import filled, indented, is_whole, output_type, result_name

Example = tuple[list[str], list[str], list[str], list[str]]  # variables, start, step, end

FLOAT_ODDITIES = """\
- A product of floats passes an operation on integers, whose other operand is a `volatile` zero,
  before it is added to: otherwise compilers may fuse the two, and round once where training rounded
  twice.
"""


def stream_program(network: PackedNetwork, name: str, steps: int) -> str:
    """An example that feeds the network from a sensor and says what it makes of it."""
    upper = name.upper()
    parts = {"argument": "", "sensor": filled("sensor.c.in", NAME=upper, steps=steps)}
    example = _predicting if network.outputs else _counting
    variables, start, step, end = example(network, name)
    if network.encoding:
        variables = [f"static {name}_encoder encoder;", *variables]
        encode = f"{name}_encode_start(&encoder, golden_points, 0)"
        start = [*start, f"if ({encode}) /* here a golden point */", "    return 1;"]
        parts["argument"] = "&encoder, "
        parts["sensor"] = filled("sensor_points.c.in", name=name, NAME=upper)
    lines = {"variables": variables, "start": start, "step": indented(step), "end": end}
    parts |= {key: "".join(f"{line}\n" for line in indented(some)) for key, some in lines.items()}
    return filled("stream.c.in", name=name, NAME=upper, **parts)


def _counting(network: PackedNetwork, name: str) -> Example:
    """For a network without a readout."""
    last = len(network.layers) - 1
    return (
        [],
        [],
        [
            f"{name}_step(&state, x, NULL);",
            f'printf("%08lx\\n", (unsigned long)state.s{last}[0][0]);',
        ],
        [],
    )


def _predicting(network: PackedNetwork, name: str) -> Example:
    """For one that predicts; with prediction sets it stops early."""
    upper, result = name.upper(), result_name(network)
    if network.sets is not None and c_sets.encodings(network) == 1:
        inside = "decision.set[c / 32] >> c % 32 & 1"
        return (
            [f"static {name}_decision decision;", "size_t c;"],
            [f"{name}_decision_reset(&decision);"],
            [
                f"{name}_step(&state, x, NULL);",
                f"if ({name}_decided(&decision, &state)) /* no more time steps are needed */",
                "    break;",
            ],
            [
                'printf("after %lu time steps:", (unsigned long)decision.steps);',
                f"for (c = 0; c < {upper}_OUTPUTS; c++)",
                f"    if ({inside})",
                '        printf(" %lu", (unsigned long)c);',
                'printf("\\n");',
            ],
        )
    kind = "int32_t" if is_whole(network) else "float"
    size = f"{upper}_MEMBERS * {upper}_OUTPUTS"
    variables = [
        f"static {output_type(network)} {result}[{size}];",
        f"static {kind} sums[{upper}_OUTPUTS];",
        "size_t k, best = 0;",
    ]
    step = [
        f"{name}_step(&state, x, {result});",
        f"for (k = 0; t + 1 > {upper}_BURN_IN && k < {size}; k++)",
        f"    sums[k % {upper}_OUTPUTS] += {result}[k];",
    ]
    end = [
        f"for (k = 1; k < {upper}_OUTPUTS; k++)",
        "    if (sums[k] > sums[best])",
        "        best = k;",
        'printf("after %lu time steps: output %lu leads, with %g\\n", (unsigned long)t, '
        "(unsigned long)best, (double)sums[best]);",
    ]
    return variables, [], step, end


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
            "Options that change float arithmetic, such as `-ffast-math`, are refused by `#error`."
        )
    encoder = f"| `{name}_encode.c` | makes spikes of points, in doubles |\n"
    members = "one set of weights" if network.count == 1 else f"{network.count} members"
    return filled(
        "README.md.in",
        name=name,
        members=members,
        encoder=encoder if network.encoding else "",
        api="\n".join(lines).replace("NAME_", f"{name}_") + "\n",
        result=result,
        float="" if whole else " and rounds floats as IEEE 754 says",
        arithmetic=arithmetic,
        oddities="" if whole else FLOAT_ODDITIES,
        flash=f"{sizes['flash']:,}",
        ram=f"{sizes['ram']:,}",
    )
