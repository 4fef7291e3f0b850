"""Only the biases are trained.      Ben Zaken et al. 2022, BitFit"""

from heedful.adapters import AdapterConfig
from heedful.model.architecture import Model


class BiasConfig(AdapterConfig):
    """The folder holds the trained biases themselves: they take the place of the base's."""

    @property
    def merges(self) -> bool:
        return True

    def install(self, model: Model) -> set[str]:
        found = {name for name, _ in model.named_parameters() if name.rpartition(".")[2] == "bias"}
        if not found:
            raise ValueError("adapter bias: this model has no biases; choose lora")
        return found

    def merge(self, model: Model) -> None:
        """Nothing to fold."""
