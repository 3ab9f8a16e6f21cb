"""Verbs that load models into slots, and tell what is loaded."""

from pathlib import Path

from libsemantic.engine.errors import InvalidArgumentError, NotReadyError, UnsupportedError

from .arguments import Name
from .context import Context, Verb
from .hub import local_folder
from .slots import Wanted


def load(context: Context, path: Name, use_cpu: bool) -> bool:
    """Load the one slot of the row."""
    context.slots.load(context.row.slots[0], path, use_cpu)
    return True


def load_counted(context: Context, path: Name, num_classes: int, use_cpu: bool) -> bool:
    """Load a classifier of ``num_classes`` labels, 2 or more."""
    return _load_counted(context, path, num_classes, use_cpu, adapters_count=True)


def load_counted_or_adapter(context: Context, path: Name, num_classes: int, use_cpu: bool) -> bool:
    """Load a classifier of ``num_classes`` labels, or an adapter of any number.

    ``lora_config.json`` marks an adapter that was merged.
    """
    return _load_counted(context, path, num_classes, use_cpu, adapters_count=False)


def load_uncounted(context: Context, path: Name, num_classes: int, use_cpu: bool) -> bool:
    """Load the one slot of the row, whatever the number of labels."""
    del num_classes
    return load(context, path, use_cpu)


def _load_counted(
    context: Context, path: Name, num_classes: int, use_cpu: bool, *, adapters_count: bool
) -> bool:
    if num_classes < 2:
        raise InvalidArgumentError(f"num_classes is {num_classes}; give 2 or more")
    merged = (Path(local_folder(path)) / "lora_config.json").is_file()
    any_number = merged and not adapters_count
    (slot,) = context.row.slots
    wanted = Wanted(
        slot, path, label_count=0 if any_number else num_classes, adapters_count=adapters_count
    )
    context.slots.load_all([wanted], use_cpu)
    return True


def is_loaded(context: Context) -> bool:
    """Tell whether the one slot of the row holds a model that is ready."""
    try:
        return context.slots.find(context.row.slots[0]) is not None
    except NotReadyError:
        return False


def unsupported(context: Context, *arguments: object) -> object:
    """Refuse what this library does not do yet."""
    del context, arguments
    raise UnsupportedError("unsupported: this library does not answer this function yet")


VERBS: tuple[Verb, ...] = (
    load,
    load_counted,
    load_counted_or_adapter,
    load_uncounted,
    is_loaded,
    unsupported,
)
