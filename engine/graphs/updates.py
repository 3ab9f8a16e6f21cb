"""Updates of linear layers by adapters: merged into the weight, or brought by each run."""

from typing import TYPE_CHECKING

from onnx import TensorProto, ValueInfoProto, helper

from ..adaptation import Adaptation, slot_names
from .config_values import Size
from .stored import StoredWeights

if TYPE_CHECKING:
    from .builder import GraphBuilder


class Updates:
    """The updates of one graph; ``slots`` are the inputs for those that a run brings.

    It does not hold the builder, which holds it: the two would stay in memory for a while.
    """

    def __init__(self, stored: StoredWeights, adaptation: Adaptation) -> None:
        self.slots: list[ValueInfoProto] = []
        self._stored = stored
        self._updates = adaptation.updates

    def merged(self, builder: "GraphBuilder", weight: str, name: str) -> str:
        """Add the update of a linear layer to its weight; ONNX Runtime does so while it loads."""
        update = self._updates.get(name)
        if update is None:
            return weight
        down, up = slot_names(name)
        self._stored.write(down, update.down)
        self._stored.write(up, update.up)
        return builder.op("Add", [weight, builder.op("MatMul", [up, down])])

    def slot(self, name: str, inputs: Size, outputs: Size) -> tuple[str, str]:
        """Add the inputs for an update of a linear layer, of rank 0 by default."""
        down, up = slot_names(name)
        initializers = self._stored.initializers
        if down in initializers:  # a layer that is applied twice
            return down, up
        for slot, shape in ((down, (0, inputs.value)), (up, (outputs.value, 0))):
            rank = [size or f"{name} rank" for size in shape]
            self.slots.append(helper.make_tensor_value_info(slot, TensorProto.FLOAT, rank))
            initializers[slot] = helper.make_tensor(slot, TensorProto.FLOAT, shape, [])
        return down, up
