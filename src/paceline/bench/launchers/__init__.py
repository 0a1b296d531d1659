"""Where processes are started: this machine, and through engines that exist elsewhere."""
