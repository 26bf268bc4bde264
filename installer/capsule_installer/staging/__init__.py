"""From a stream of frames to a staged generation, while services run."""
