"""Many small images in one large lossless picture (PNG or WebP)."""

from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def read_sprite(stream: IO[bytes], width: int, height: int) -> NDArray[np.uint8]:
    """The pixels (height, width, 3) of a picture that must have exactly this size."""
    # Opening reads only the header. Checking the size before decoding is a tighter guard against a decompression
    # bomb than Pillow's process-wide limit, which the sprites stay below and which is therefore left alone.
    with Image.open(stream, formats=("PNG", "WEBP")) as picture:
        if picture.size != (width, height) or picture.mode != "RGB":
            raise ValueError(
                f"a sprite is {picture.width}×{picture.height} {picture.mode} where {width}×{height} RGB was expected"
            )
        return np.asarray(picture)
