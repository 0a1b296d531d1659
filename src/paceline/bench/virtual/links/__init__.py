"""Links of a virtual cluster: rate, delay, and the measurements that prove both."""
