import sys

from graphd.cli import main

sys.exit(main())
