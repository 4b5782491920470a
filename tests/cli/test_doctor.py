"""The first run: what `penstock doctor` says, and that no command ends in a traceback."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import install_hints as installing
from penstock.__main__ import _parser, main
from penstock.cli import doctor
from penstock.cli.completion import SHELLS, completion

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "doctor": ["doctor"],
    "report": ["doctor", "--report"],
    "devices": ["devices"],
    "demo": ["demo"],
    "check": ["check", "--driver", "vulkan", "--programs", "1"],
    "generate": ["generate", "MODEL", "-p", "x", "-n", "1"],
}


@pytest.fixture(params=["no loader", "no driver"])
def without_vulkan(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without Vulkan's loader, or with it and no driver."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("VK_")
    } | {"PYTHONPATH": str(ROOT / "src")}
    if request.param == "no driver":
        return environment | {"VK_DRIVER_FILES": str(tmp_path / "none.json")}
    # Found before the real one, and of no use.
    (tmp_path / "libvulkan.so.1").touch()
    return environment | {"LD_LIBRARY_PATH": str(tmp_path)}


@pytest.mark.parametrize("command", COMMANDS)
def test_without_vulkan_every_command_ends_with_advice(
    without_vulkan: dict[str, str], command: str, tmp_path: Path
) -> None:
    words = COMMANDS[command]
    if command == "generate":
        from penstock.llm.random_model import shape_of, write_random_model

        model = tmp_path / "tiny.gguf"
        write_random_model(model, shape_of("tiny"))
        words = [str(model) if word == "MODEL" else word for word in words]
    run = subprocess.run(
        [sys.executable, "-m", "penstock", *words], env=without_vulkan, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    said = run.stdout + run.stderr
    assert run.returncode == 1, said
    assert "Traceback" not in said
    assert any(command in said for command in installing.commands("driver").values()) or (
        any(command in said for command in installing.commands("loader", "driver").values())
    )


def test_without_vulkan_the_rest_works(without_vulkan: dict[str, str]) -> None:
    words = ["check", "--driver", "sim", "--programs", "1", "--transfers", "auto"]
    subprocess.run([sys.executable, "-m", "penstock", *words], env=without_vulkan, check=True)


@pytest.mark.usefixtures("dev")
class TestHere:
    def test_it_finds_the_devices_and_they_work(self) -> None:
        found = doctor.diagnose()
        assert [device.info.name for device in found.devices] == [i.name for i in ps.devices()]
        assert found.healthy
        assert all(device.works for device in found.devices)
        assert found.loader
        assert not [each for each in found.missing if each.needed]
        for device in found.devices:
            assert f"{device.info.name}: works" in str(found)

    def test_machines_get_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["healthy"]
        assert found["penstock"] == ps.__version__
        assert all(device["abilities"]["timelines"] for device in found["devices"])

    def test_a_device_that_fails_is_told_of(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(which: object, size: int) -> None:
            raise ps.DeviceLost("gone")

        monkeypatch.setattr("penstock.cli.demo.run", fail)
        found = doctor.diagnose()
        assert not found.healthy
        assert "DOES NOT WORK: DeviceLost: gone" in str(found)

    def test_what_is_missing_comes_with_its_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.shader.glsl.compilers", list)
        monkeypatch.setattr(doctor, "_version", lambda package: "")
        monkeypatch.setattr("penstock.accelerator.status", "not built; launches are made in Python")
        found = str(doctor.diagnose())
        for command in (
            "pip install 'penstock-gpu[glsl]'", "pip install 'penstock-gpu[llm]'",
            "pip install numpy",
            "scripts/setup    (a checkout)",
            "pip install --force-reinstall --no-deps --no-cache-dir --no-binary penstock-gpu "
            "penstock-gpu",
            *installing.commands("glsl").values(),
        ):  # fmt: skip
            assert f"    {command}" in found


class TestNames:
    """The distribution is penstock-gpu. penstock, on the package index, is another project's."""

    OURS = "The Penstock authors"

    @pytest.fixture
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An environment of its own: what is installed here does not matter."""
        find = metadata.MetadataPathFinder.find_distributions

        def only_there(*arguments: Any, **named: Any) -> Any:
            context = metadata.DistributionFinder.Context(
                name=arguments[0].name, path=[str(tmp_path)]
            )
            return find(context)

        monkeypatch.setattr(metadata.MetadataPathFinder, "find_distributions", only_there)
        return tmp_path

    def install(self, place: Path, name: str, author: str) -> None:
        about = place / f"{name.replace('-', '_')}-9.9.dist-info"
        about.mkdir()
        text = f"Metadata-Version: 2.4\nName: {name}\nVersion: 9.9\nAuthor: {author}\n"
        (about / "METADATA").write_text(text)

    def test_alone_it_is_not_in_its_own_way(self, installed: Path) -> None:
        assert not list(doctor._conflicts())
        self.install(installed, "penstock-gpu", self.OURS)
        assert not list(doctor._conflicts())

    @pytest.mark.parametrize("own", [True, False])
    def test_the_other_project_is_told_of(self, installed: Path, own: bool) -> None:
        self.install(installed, "penstock", "Someone Else")
        if own:
            self.install(installed, "penstock-gpu", self.OURS)
        (told,) = doctor._conflicts()
        assert "penstock 9.9 is installed, another project" in told.what
        assert ("and penstock-gpu is not" in told.what) == (not own)
        assert str(Path(ps.__file__).parent) in told.what
        assert told.command.startswith("pip uninstall penstock && pip install")
        assert told.command.endswith("penstock-gpu")

    def test_files_of_both_in_one_folder(self, installed: Path) -> None:
        self.install(installed, "penstock", "Someone Else")
        self.install(installed, "penstock-gpu", self.OURS)
        (installed / "penstock").symlink_to(Path(ps.__file__).parent)
        (told,) = doctor._conflicts()
        assert "the files of both are mixed in" in told.what

    def test_the_old_name_is_not_the_other_project(self, installed: Path) -> None:
        self.install(installed, "penstock", self.OURS)
        assert not list(doctor._conflicts())
        self.install(installed, "penstock-gpu", self.OURS)
        (told,) = doctor._conflicts()
        assert "also installed under its old name" in told.what

    def test_it_is_in_the_report(self, installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.install(installed, "penstock", "Someone Else")
        main(["doctor"])
        assert "In the way:\n  penstock 9.9 is installed" in capsys.readouterr().out
        main(["doctor", "--json"])
        (told,) = json.loads(capsys.readouterr().out)["conflicts"]
        assert told["command"].startswith("pip uninstall penstock")


@pytest.mark.parametrize(
    ("release", "family"),
    [
        ("ID=debian\n", "debian"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', "debian"),
        ("NAME=Fedora\nID=fedora\n", "fedora"),
        ('ID=manjaro\nID_LIKE="arch"', "arch"),
        ("ID=plan9\n", None),
        ("# nothing\n\n", None),
    ],
)
def test_distributions_are_known_by_their_kin(release: str, family: str | None) -> None:
    assert installing.family_of(release) == family


def test_elsewhere_every_command_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installing, "_OS_RELEASE", tmp_path / "none")
    told = installing.advice("loader", "driver")
    for words in (
        "apt install libvulkan1 mesa-vulkan-drivers",
        "dnf install vulkan-loader mesa-vulkan-drivers",
        "pacman -S vulkan-icd-loader vulkan-swrast",
    ):
        assert words in told


class TestCompletion:
    @pytest.mark.parametrize(
        ("words", "wanted"),
        [
            (["penstock", "do"], {"doctor"}),
            (["penstock", "d"], {"demo", "doctor", "devices"}),
            (["penstock", "demo", "--"], {"--help", "--json", "--device", "--size"}),
            (["penstock", "check", "--driver", "s"], {"sim"}),
            (["penstock", "devices", "--driver", ""], {"vulkan", "hip"}),
            (["penstock", "--completion", "z"], {"zsh"}),
            (["penstock", "bench", "r"], {"runtime", "report"}),
            (["penstock", "bench", "--ab"], {"--ablate"}),
            (["penstock", "bench", "runtime", "--o"], {"--only", "--output", "--output-err"}),
            (["penstock", "bench", "compare", "--fail-on", ""], {"worse", "counts", "never"}),
            (["penstock", "bench", "x.gguf", "--output", "j"], {"json", "jsonl"}),
        ],
    )
    def test_bash_completes(self, words: list[str], wanted: set[str]) -> None:
        bash = shutil.which("bash")
        if bash is None:
            pytest.skip("bash is not installed")
        listed = " ".join(f"'{word}'" for word in words)
        program = (
            f"{completion(_parser(), 'bash')}\nCOMP_WORDS=({listed}) COMP_CWORD={len(words) - 1}\n"
            '_penstock; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        run = subprocess.run([bash, "-c", program], capture_output=True, text=True, check=True)
        assert set(run.stdout.split()) == wanted

    @pytest.mark.parametrize(
        ("typed", "wanted"),
        [
            ("penstock do", {"doctor"}),
            ("penstock check --driver ", {"sim", "vulkan", "hip"}),
            ("penstock bench ru", {"runtime"}),
            ("penstock bench runtime --on", {"--only"}),
            ("penstock bench compare --fail-on ", {"worse", "counts", "never"}),
            ("penstock bench --de", {"--device", "--delay"}),
        ],
    )
    def test_fish_completes(self, typed: str, wanted: set[str], tmp_path: Path) -> None:
        fish = shutil.which("fish")
        if fish is None:
            pytest.skip("fish is not installed")
        program = f"{completion(_parser(), 'fish')}\ncomplete -C {shlex.quote(typed)}"
        run = subprocess.run(
            [fish, "--no-config", "-c", program], capture_output=True, text=True, check=True,
            cwd=tmp_path,
        )  # fmt: skip
        assert {line.split("\t")[0] for line in run.stdout.splitlines()} == wanted

    def test_descriptions_are_written_out(self) -> None:
        script = completion(_parser(), "fish")
        assert "%(" not in script
        assert "-d 'part of a device\\'s name'" in script

    @pytest.mark.parametrize("shell", SHELLS)
    def test_shells_accept_it(self, shell: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["--completion", shell])
        assert ended.value.code == 0
        script = capsys.readouterr().out
        assert "doctor" in script
        program = shutil.which(shell)
        if program is None:
            pytest.skip(f"{shell} is not installed")
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    from penstock.llm.random_model import shape_of, write_random_model

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_random_model(path, shape_of("tiny"))
    return str(path)


class TestEnds:
    """Ctrl-C, and a reader that has seen enough, end a command without a word."""

    PRINTING = (
        "--help", "--version", "--completion zsh", "doctor", "devices", "demo",
        "check --programs 1 --transfers auto", "generate MODEL -p x",
        "generate MODEL -p x -n 2 --json", "bench MODEL -p 2 -n 0 -r 1", "bench --help",
    )  # fmt: skip

    @pytest.mark.parametrize("command", PRINTING)
    def test_a_closed_pipe(self, command: str, tiny: str) -> None:
        words = [tiny if word == "MODEL" else word for word in command.split()]
        read, write = os.pipe()
        os.close(read)
        run = subprocess.run(
            [sys.executable, "-m", "penstock", *words], stdout=write, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
        os.close(write)
        # Some versions of argparse do not mind.
        mild = words[-1] in ("--help", "--version")
        assert run.returncode in ((0, 141) if mild else (141,)), run.stderr
        for word in ("Traceback", "Exception", "Errno"):
            assert word not in run.stderr

    @pytest.mark.parametrize(
        ("command", "work"),
        [
            (["doctor"], "penstock.cli.doctor.diagnose"),
            (["devices"], "penstock.driver.list_devices"),
            (["demo"], "penstock.cli.demo.run"),
            (["check"], "penstock.conformance.check.check"),
            (["generate", "MODEL", "-p", "x"], "penstock.llm.command.load"),
            (["bench", "MODEL"], "penstock.bench.models.measure"),
            (["bench", "runtime"], "penstock.bench.runtime.measure"),
            (["bench", "compare", "a", "b"], "penstock.bench.compare.read"),
        ],
    )
    def test_ctrl_c(
        self, command: list[str], work: str, tiny: str, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        def interrupted(*_: object, **__: object) -> None:
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                if command == ["demo"]:
                    raise ps.Closed("what was being done ended in the middle")

        monkeypatch.setattr(work, interrupted)
        assert main([tiny if word == "MODEL" else word for word in command]) == 130
        assert capsys.readouterr() == ("", "")

    def test_ctrl_c_in_the_middle_of_a_text(self, tiny: str) -> None:
        words = ["generate", tiny, "-p", "x", "-n", "500", "--temp", "1"]
        with subprocess.Popen(
            [sys.executable, "-m", "penstock", *words], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as run:  # fmt: skip
            assert run.stdout is not None
            assert run.stdout.read(2)
            run.send_signal(signal.SIGINT)
            _, said = run.communicate()
        assert (run.returncode, said) == (130, b"")

    def test_a_file_that_cannot_be_written(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["bench", "runtime", "--only", "launch", "-r", "1", "--save", "no/such/folder.json"]
        assert main(words) == 1
        assert "penstock: [Errno 2] No such file or directory" in capsys.readouterr().err

    def test_text_that_the_terminal_lacks(self, tmp_path: Path) -> None:
        rows = [{"test": "größer", "samples_ns": [1, 2, 3, 4]}]
        (tmp_path / "a.json").write_text(json.dumps(rows))
        run = subprocess.run(
            [sys.executable, "-m", "penstock", "bench", "compare", "a.json", "a.json"],
            cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        assert r"gr\xf6\xdfer" in run.stdout
