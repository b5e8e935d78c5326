"""`python -m vivace` is `vivace`."""

from vivace.cli.main import main

raise SystemExit(main())
