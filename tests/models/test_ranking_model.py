"""What all kinds of models have in common."""

import pytest

from bert4rec.models.kinds import KINDS


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_kind_names_its_settings(kind: str) -> None:
    """All that the builder gives a model is there for it to take."""
    from inspect import signature

    model = KINDS[kind]
    accepted = signature(model).parameters
    takes_more = "encoder" in accepted
    names = {*model.tables_of, *model.settings, *model.loss_settings}
    assert {name for name in names if name not in accepted} == (
        {"n_heads", "n_layers", "ffn_dim", "max_len", "dropout", "positions", "input_norm"} if takes_more else set()
    )
    assert (bool(model.title), bool(model.unit)) == (True, True)
