"""Verbs of MLP selectors, which callers hold by handles."""

from libsemantic.engine.mlp import UNTRAINED, MlpSelector
from libsemantic.engine.mlp_json import read_selector, write_selector

from .arguments import Address, Doubles, Name
from .context import Context, Verb

_DEVICES = {1: "CUDA", 2: "Metal"}


def new_selector(context: Context, device_type: int = 0, dtype: int = 0) -> int:
    """Return the handle of a selector that is not trained."""
    del dtype
    return _add(context, UNTRAINED, device_type)


def selector_from_json(context: Context, json: Name, device_type: int = 0, dtype: int = 0) -> int:
    """Return the handle of a selector that is read from its JSON."""
    del dtype
    return _add(context, read_selector(json), device_type)


def _add(context: Context, selector: MlpSelector, device_type: int) -> int:
    """Keep a selector; all of them compute on the CPU in float32, whatever was asked for."""
    if device_type in _DEVICES:
        context.slots.registry.log.warning(
            f"{context.row.function}: selectors run on the CPU, not on {_DEVICES[device_type]}"
        )
    return context.selectors.add(selector)


def select(context: Context, handle: Address, query: Doubles) -> str:
    """Return the name of the model that a selector chooses."""
    return context.selectors[handle].select(query)


def is_trained(context: Context, handle: Address) -> int:
    """Tell whether a selector is trained."""
    return int(context.selectors[handle].trained)


def selector_to_json(context: Context, handle: Address) -> str:
    """Return the JSON of a selector."""
    return write_selector(context.selectors[handle])


def free_selector(context: Context, handle: Address) -> None:
    """Free a selector."""
    context.selectors.remove(handle)


VERBS: tuple[Verb, ...] = (
    new_selector,
    selector_from_json,
    select,
    is_trained,
    selector_to_json,
    free_selector,
)
