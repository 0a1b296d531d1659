"""Virtual clusters on one machine: hosts are namespaces, links are shaped, devices may be emulated."""
