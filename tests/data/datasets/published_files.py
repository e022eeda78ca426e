"""Small files in the formats in which the data sets are published or packed, written from arrays."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image


def images(seed, n, shape):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def labels(seed, n, classes):
    return np.random.default_rng(seed).integers(0, classes, n)


def idx(array):
    array = np.asarray(array, np.uint8)
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(folder, x_train, y_train, x_test, y_test, packed=False):
    for name, array in {
        "train-images-idx3-ubyte": x_train,
        "train-labels-idx1-ubyte": y_train,
        "t10k-images-idx3-ubyte": x_test,
        "t10k-labels-idx1-ubyte": y_test,
    }.items():
        _idx_file(folder, name, array, packed)


def emnist(folder, subset, x_train, y_train, x_test, y_test):
    for split, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        _idx_file(folder, f"emnist-{subset}-{split}-images-idx3-ubyte", x.transpose(0, 2, 1), True)
        _idx_file(folder, f"emnist-{subset}-{split}-labels-idx1-ubyte", y, True)


def _idx_file(folder, name, array, packed):
    if packed:
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    else:
        (folder / name).write_bytes(idx(array))


def cifar_batches(folder, x_train, y_train, x_test, y_test):
    for i, (x, y) in enumerate(zip(np.split(x_train, 5), np.split(y_train, 5), strict=True), 1):
        (folder / f"data_batch_{i}.bin").write_bytes(_cifar_records(x, y))
    (folder / "test_batch.bin").write_bytes(_cifar_records(x_test, y_test))


def _cifar_records(x, y):
    return b"".join(bytes([label]) + image.transpose(2, 0, 1).tobytes() for image, label in zip(x, y, strict=True))


def cifar_sprites(folder, x_train, y_train, x_test, y_test):
    for i, x in enumerate(np.split(x_train, 5), 1):
        Image.fromarray(x.reshape(len(x), 1024, 3)).save(folder / f"data_batch_{i}.png")
    Image.fromarray(x_test.reshape(len(x_test), 1024, 3)).save(folder / "test_batch.png")
    (folder / "train_lables.json").write_text(json.dumps(y_train.tolist()))
    (folder / "test_lables.json").write_text(json.dumps(y_test.tolist()))


def svhn_matlab(folder, x_train, y_train, x_test, y_test):
    for split, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        ten_for_zero = np.where(y == 0, 10, y).astype(np.uint8).reshape(-1, 1)
        variables = {"X": x.transpose(1, 2, 3, 0), "y": ten_for_zero}
        scipy.io.savemat(folder / f"{split}_32x32.mat", variables, do_compression=True)


def svhn_sprites(folder, x_train, y_train, x_test, y_test, a_row=3, rows=2):
    """Sprites of at most ``rows`` rows of ``a_row`` tiles; the last row is filled up with black tiles."""
    with zipfile.ZipFile(folder / "svhn_webp.zip", "w") as archive:
        for split, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
            missing = -len(x) % a_row
            tiles = np.concatenate([x, np.zeros((missing, 32, 32, 3), np.uint8)]).reshape(-1, a_row, 32, 32, 3)
            for i, start in enumerate(range(0, len(tiles), rows)):
                some = tiles[start : start + rows].transpose(0, 2, 1, 3, 4).reshape(-1, a_row * 32, 3)
                buffer = io.BytesIO()
                Image.fromarray(some).save(buffer, "WEBP", lossless=True)
                archive.writestr(f"x_{split}_{i:03d}.webp", buffer.getvalue())
            buffer = io.BytesIO()
            np.save(buffer, y.astype(np.uint8))
            archive.writestr(f"y_{split}.npy", buffer.getvalue())
        count = {"x_train": len(x_train), "x_test": len(x_test)}
        meta = {"tile": [32, 32, 3], "tiles_per_row": a_row, "order": "row-major", "count": count}
        archive.writestr("meta.json", json.dumps(meta))


def tiny_imagenet(folder, x_train, y_train, x_test, y_test, wnids):
    """As published: JPEG (so the pixels come back only nearly equal), classes listed in an order of their own."""
    root = folder / "tiny-imagenet-200"
    ordered = sorted(wnids)
    for label, wnid in enumerate(ordered):
        place = root / "train" / wnid / "images"
        place.mkdir(parents=True)
        for i, image in enumerate(x_train[y_train == label]):
            Image.fromarray(image).save(place / f"{wnid}_{i}.JPEG", quality=100, subsampling=0)
    (root / "val" / "images").mkdir(parents=True)
    for i, image in enumerate(x_test):
        Image.fromarray(image).save(root / "val" / "images" / f"val_{i}.JPEG", quality=100, subsampling=0)
    lines = [f"val_{i}.JPEG\t{ordered[label]}\t0\t0\t63\t63\n" for i, label in enumerate(y_test)]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in wnids))
    (root / "words.txt").write_text("".join(f"{wnid}\tname of {wnid}, Latinum\n" for wnid in [*wnids, "n99999999"]))
    return root


def polarity(folder, negative, positive):
    for which, lines in (("neg", negative), ("pos", positive)):
        (folder / f"rt-polarity.{which}").write_bytes("".join(f"{line} \n" for line in lines).encode("cp1252"))


def trees(folder, **splits):
    for split, lines in splits.items():
        (folder / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def tsv(path, columns, rows):
    text = "".join("\t".join(map(str, row)) + "\n" for row in [columns, *rows])
    path.write_bytes(gzip.compress(text.encode()))


def tar_of(folder: Path, archive: Path, inside: str):
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, f"{inside}/{path.relative_to(folder)}", recursive=False)
    return archive


def zip_of(folder: Path, archive: Path, inside: str):
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, f"{inside}/{path.relative_to(folder)}")
    return archive
