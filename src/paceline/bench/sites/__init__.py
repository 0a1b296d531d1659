"""Sites: the hosts on which the processes of a launch run, and the launchers that open them."""
