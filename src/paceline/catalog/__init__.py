"""Data shipped with the product: networks, devices, links, clusters, frameworks, published figures."""
