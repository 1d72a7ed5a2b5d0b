"""What leaves PyTorch: a network of bits as C99, as NIR, as a page; what an inference takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bisnn import lazy

_MODULES = {name: name for name in ("c", "energy", "nir", "nir_simulation", "web")}
__all__, __getattr__, __dir__ = lazy.names(__name__, {}, _MODULES)

# As themselves: so type checkers take them for public
if TYPE_CHECKING:
    from bisnn.shipping import (
        c as c,
        energy as energy,
        nir as nir,
        nir_simulation as nir_simulation,
        web as web,
    )
