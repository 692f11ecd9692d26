"""A core with a child, as an engine has that computes in several processes."""

import subprocess
import sys

from baton.testing.fake_core import main

if __name__ == "__main__":
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    main(sys.argv[1:])
