"""Where the processes of a launch run: one launcher a module, and what each of them opens, a site."""
