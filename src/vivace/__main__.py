"""`python -m vivace` is `vivace`."""

from vivace.cli.main import run

run()
