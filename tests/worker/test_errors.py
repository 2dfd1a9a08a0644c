import worker.errors
from worker.errors import MAX_FACT_BYTES, MAX_MESSAGE_BYTES, InvalidField, WorkerError, incident_of


def tree(root: type[WorkerError]) -> set[type[WorkerError]]:
    return {root}.union(*map(tree, root.__subclasses__()))


def test_the_docstring_draws_every_class():
    drawn = worker.errors.__doc__ or ""
    assert all(f" {kind.__name__}\n" in drawn for kind in tree(WorkerError))


def test_texts_and_facts_are_cut_to_what_a_status_may_hold():
    error = InvalidField("f" * 1000, "d" * 1000)
    assert len(error.message) <= MAX_MESSAGE_BYTES
    assert len(error.metadata["field"]) <= MAX_FACT_BYTES


def test_an_incident_has_a_name_of_its_own():
    assert incident_of(ValueError("a"), "failed").incident != incident_of(ValueError("a"), "failed").incident
