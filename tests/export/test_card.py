"""The card of an exported model."""

from bert4rec.export.export import card

SETTINGS = {
    "config": {"model": {"kind": "sasrec", "max_len": 50, "embed_dim": 64}}, "n_items": 1234, "item_ids": "text",
    "leaves_out_seen": False, "source": "table",
}  # fmt: skip
FULL = {"users": 3000, "HR@10": 0.38196, "NDCG@10": 0.21637}


def test_it_says_what_the_model_is_what_it_is_worth_and_how_each_file_is_used() -> None:
    text = card(
        SETTINGS, ["safetensors", "vectors", "pt2", "onnx"], k=7, example=["x", "y"], report={"test": {"full": FULL}}
    )
    for value in ("sasrec", "1,234", "3,000", "0.3820", "0.2164", "49"):
        assert value in text
    assert text.count('k, history = 7, ["x", "y"]') == 2
    assert 'model.recommend([["x", "y"]], k=10)' in text
    assert 'torch.export.load("program.pt2")' in text
    assert 'session.run(None, {"items": np.array(known, np.int64), "k": np.array(k)})' in text


def test_it_speaks_of_what_is_there_alone() -> None:
    text = card(SETTINGS, ["vectors"], k=7, example=[1, 2], report={})
    assert "vectors.npy" in text
    assert not any(word in text for word in ("HR@10", "program.pt2", "safetensors", "onnx", "torch.export"))
