"""What is there: devices, memory, links and clocks of real hosts, discovered and measured."""
