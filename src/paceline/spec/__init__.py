"""Input data: networks, clusters, strategies and studies as frozen models, independent of any framework."""
