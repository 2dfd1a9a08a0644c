"""Workers that die of the same cause: one incident, whatever the number of models."""

INCIDENT_S = 3.0  # Workers that die within this time of a first one are taken to die of the same cause.


class Incidents:
    """The crashes of all models, as far as one may have led to another."""

    def __init__(self) -> None:
        """Begin without a crash."""
        self._model = ""  # that crashed first in the last incident
        self._began_s = float("-inf")

    def is_own(self, model: str, now_s: float) -> bool:
        """Note a crash, and say whether it is one of the model's own, and not of an incident that another began."""
        if now_s - self._began_s > INCIDENT_S:
            self._model, self._began_s = model, now_s
        return model == self._model
