"""Many small images in one large lossless picture (PNG or WebP)."""

from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def read_sprite(stream: IO[bytes], width: int, height: int, or_less: bool = False) -> NDArray[np.uint8]:
    """The pixels (height, width, 3) of a picture that must have this size, or this width and some of the height."""
    # Opening reads only the header. Checking the size before decoding is a tighter guard against a decompression
    # bomb than Pillow's process-wide limit, which the sprites stay below and which is therefore left alone.
    with Image.open(stream, formats=("PNG", "WEBP")) as picture:
        fits = 0 < picture.height <= height if or_less else picture.height == height
        if picture.width != width or not fits or picture.mode != "RGB":
            raise ValueError(
                f"a sprite is {picture.width}×{picture.height} {picture.mode} where {width}×{height} RGB was expected"
            )
        return np.asarray(picture)
