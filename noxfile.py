"""Sessions for development: `nox -l` lists them, `nox -s lint` runs one."""

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
PARTS = {
    "unit": ("tests/unit", "tests/cli"),
    "kernel": ("tests/kernel",),
    "golden": ("tests/golden",),
    "loop": ("tests/loop",),
    "arch": ("tests/arch",),
    "notebooks": ("tests/notebook", "notebooks"),
}


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, and the import layers."""
    session.install("-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict."""
    session.install("-e", ".[dev]")
    session.run("mypy")


@nox.session
@nox.parametrize("part", list(PARTS), ids=list(PARTS))
def tests(session: nox.Session, part: str) -> None:
    """One folder of tests."""
    session.install("-e", ".[test]")
    session.run("pytest", *PARTS[part], *session.posargs)


@nox.session
def mutate(session: nox.Session) -> None:
    """Break one thing at a time; every fault must turn a test red."""
    session.install("-e", ".[test]")
    session.run("python", "tools/mutate.py", *session.posargs)


@nox.session
def goldens(session: nox.Session) -> None:
    """Make the goldens again that this project makes itself (needs torch and transformers)."""
    session.install("-e", ".[test,reference]")
    session.run("python", "tools/make_seed_targets.py")
