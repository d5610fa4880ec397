"""Images that any machine can make again, in every mode and odd sizes, and the processors they go through."""

import json
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FIXTURES = Path(__file__).parents[1] / "fixtures" / "images"
DIGESTS = FIXTURES / "pixel_values.json"

SIZES = [
    *((1, 1), (1, 200), (200, 1), (3000, 17), (17, 3000), (2, 3), (15, 16), (31, 33)),
    *((223, 224), (224, 224), (225, 224), (448, 224), (640, 427), (300, 500), (37, 511)),
]
MODES = ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"]
# Every size in colours, and every mode in some sizes: 40 in all.
CASES = [
    *(("RGB", *size) for size in SIZES),
    *((mode, *size) for mode in MODES[1:] for size in ((1, 1), (31, 33), (300, 500), (37, 511))),
    ("P", 3000, 17),
]
PROCESSORS: dict[str, dict[str, Any]] = {
    "clip": {"image_processor_type": "CLIPImageProcessor"},
    "clip_old": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 336, "crop_size": 336, "resample": 3},
    "clip_small": {"image_processor_type": "CLIPImageProcessorFast", "size": {"shortest_edge": 30},
                   "crop_size": {"height": 32, "width": 41}, "do_normalize": False},
    "chinese_clip": {"image_processor_type": "ChineseCLIPImageProcessor", "size": {"height": 224, "width": 224},
                     "do_center_crop": False},
    "llava": {"image_processor_type": "LlavaImageProcessor", "size": {"shortest_edge": 336},
              "crop_size": {"height": 336, "width": 336}},
    "llava_next": {"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 336},
                   "crop_size": {"height": 336, "width": 336}},
    "llava_next_small": {"image_processor_type": "LlavaNextImageProcessorFast", "size": {"shortest_edge": 64},
                         "crop_size": {"height": 64, "width": 64}, "resample": 2,
                         "image_grid_pinpoints": [[64, 64], [64, 128], [192, 64], [128, 192], [128, 128]]},
    "got_ocr2": {"image_processor_type": "GotOcr2ImageProcessorFast", "size": {"height": 448, "width": 448},
                 "crop_to_patches": True},
    "got_ocr2_small": {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 96, "width": 96},
                       "crop_to_patches": True, "min_patches": 2, "max_patches": 7, "image_mean": [0.5, 0.4, 0.3]},
    "got_ocr2_whole": {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 96, "width": 96},
                       "crop_to_patches": True, "max_patches": 1},
    "siglip": {"image_processor_type": "SiglipImageProcessor"},
    "siglip_384": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 384},
                   "image_mean": [0.5, 0.5, 0.5], "rescale_factor": 0.00392156862745098, "resample": 2},
    "siglip2": {"image_processor_type": "Siglip2ImageProcessor"},
    "siglip2_small": {"image_processor_type": "Siglip2ImageProcessorFast", "max_num_patches": 64, "patch_size": 16},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor"},
    "gemma3_896": {"image_processor_type": "Gemma3ImageProcessorFast", "size": {"height": 896, "width": 896},
                   "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 2,
                   "rescale_factor": 0.00392156862745098, "do_convert_rgb": None, "do_pan_and_scan": None},
    "pixtral": {"image_processor_type": "PixtralImageProcessor"},
    "pixtral_small": {"image_processor_type": "PixtralImageProcessorFast", "size": {"longest_edge": 320},
                      "patch_size": {"height": 16, "width": 16}, "do_convert_rgb": None},
    "smolvlm": {"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 512},
                "max_image_size": {"longest_edge": 128}, "resample": 1},
    "idefics3": {"image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 182},
                 "max_image_size": {"longest_edge": 182}},
    "idefics3_odd": {"image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 333},
                     "max_image_size": {"longest_edge": 130}, "resample": 3},
    "idefics3_whole": {"image_processor_type": "Idefics3ImageProcessor", "do_image_splitting": False,
                       "size": {"longest_edge": 200}, "max_image_size": {"longest_edge": 64}},
}  # fmt: skip
PATCH_SIZE = 16


def case_name(mode: str, width: int, height: int) -> str:
    return f"{mode} {width}x{height}"


def pixels(mode: str, width: int, height: int) -> Image.Image:
    """Gradients with noise, another one for each case."""
    rng = np.random.RandomState(zlib.crc32(case_name(mode, width, height).encode()))
    across = np.linspace(0, 255, width)[None, :, None] * np.ones((height, 1, 4))
    down = np.linspace(255, 0, height)[:, None, None] * np.array([1, 0.5, 0.2, 0.8])
    mixed = (across + down) / 2 + rng.uniform(-60, 60, (height, width, 4))
    levels = np.clip(mixed, 0, 255).astype(np.uint8)
    if mode == "I;16":
        return Image.fromarray(levels[..., 0].astype(np.uint16) * 257)
    if mode == "P":
        indexed = Image.fromarray(levels[..., 0], "L")
        indexed.putpalette(rng.randint(0, 256, 768).astype(np.uint8).tobytes())
        return indexed
    return Image.fromarray(levels, "RGBA").convert(mode, dither=Image.Dither.NONE)


def png(mode: str, width: int, height: int) -> bytes:
    """The image as a file."""
    out = BytesIO()
    more = {"transparency": 7} if mode == "P" else {}
    pixels(mode, width, height).save(out, "PNG", **more)
    return out.getvalue()


def digests() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(DIGESTS.read_text())
    return found


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_header(width: int, height: int) -> bytes:
    """A PNG of one colour, of any size, in a few bytes."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
