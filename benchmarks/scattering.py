"""The scattering transform of small images: fixed features, the same for every data set.

The transform follows Bruna and Mallat (2013), with two layers of Morlet wavelets (2 scales, 8
angles), moduli, and smoothing by a factor of four. Images (N, 28, 28) become (N, 81, 7, 7). Each
image is transformed on its own, so this costs no privacy.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

SCALES, ANGLES = 2, 8
STRIDE = 2**SCALES
MARGIN = STRIDE  # reflected padding on every side
CHUNK = 500  # images that are transformed at a time
GROUP = 3  # channels that are normalized together


def grid(size: int, repeats: int = 2) -> np.ndarray:
    """Coordinates (2, copies, size, size) of a periodic plane, from -repeats to repeats periods."""
    line = np.arange(size)
    shifts = size * np.arange(-repeats, repeats + 1)
    rows, columns = np.meshgrid(line, line, indexing="ij")
    pairs = list(itertools.product(shifts, shifts))
    return np.stack(
        [np.stack([rows + a for a, _ in pairs]), np.stack([columns + b for _, b in pairs])]
    )


def gabor(size: int, sigma: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    """A Gaussian times a plane wave, summed over periods. Without slant the Gaussian sums to 1."""
    rows, columns = grid(size)
    along = math.cos(angle) * rows + math.sin(angle) * columns
    across = -math.sin(angle) * rows + math.cos(angle) * columns
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    return (
        np.sum(envelope * np.exp(1j * frequency * along), axis=0) * slant / (2 * math.pi * sigma**2)
    )


def wavelet(size: int, scale: int, angle: float) -> np.ndarray:
    """A Morlet wavelet: a wave packet minus its mean."""
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / ANGLES
    wave, bump = (gabor(size, sigma, angle, f, slant) for f in (frequency, 0.0))
    return wave - bump * (wave.sum() / bump.sum())


@functools.cache
def spectra(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Fourier transforms of the wavelets (scales, angles, size, size) and of the smoothing."""
    angles = [math.pi * k / ANGLES for k in range(ANGLES)]
    waves = [[wavelet(size, scale, angle) for angle in angles] for scale in range(SCALES)]
    smooth = gabor(size, 0.8 * 2 ** (SCALES - 1), 0.0, 0.0, 1.0)
    return np.fft.fft2(waves).astype(np.complex64), np.fft.fft2(smooth).astype(np.complex64)


@jax.jit
def scattered(images: jax.Array) -> jax.Array:
    """The scattering transform, from (N, H, W) to (N, 81, H / 4, W / 4)."""
    wide = ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN))
    x = jnp.pad(images, wide, mode="reflect")
    waves, smooth = (jnp.asarray(s) for s in spectra(x.shape[-1]))

    def filtered(x: jax.Array, spectrum: jax.Array) -> jax.Array:
        return jnp.fft.ifft2(jnp.fft.fft2(x) * spectrum)

    def smoothed(x: jax.Array) -> jax.Array:
        """Smooths, takes every fourth pixel, and cuts off the margins."""
        low = jnp.real(filtered(x, smooth))[..., ::STRIDE, ::STRIDE]
        return low[..., 1:-1, 1:-1]

    first = jnp.abs(filtered(x[:, None, None], waves[None]))  # (N, scales, angles, ...)
    outputs = [smoothed(x[:, None]), *(smoothed(first[:, j]) for j in range(SCALES))]
    for j, k in itertools.combinations(range(SCALES), 2):
        second = jnp.abs(filtered(first[:, j, :, None], waves[k][None, None]))
        outputs.append(smoothed(second.reshape(len(x), -1, *x.shape[1:])))
    return jnp.concatenate(outputs, axis=1)


def normalized(features: jax.Array) -> jax.Array:
    """Normalizes groups of channels to mean 0 and variance 1 in each example."""
    n, channels, *place = features.shape
    parts = features.reshape(n, channels // GROUP, -1)
    parts = parts - jnp.mean(parts, axis=-1, keepdims=True)
    spread = jnp.sqrt(jnp.mean(parts**2, axis=-1, keepdims=True) + 1e-5)
    return (parts / spread).reshape(n, channels, *place)


def features(images: np.ndarray) -> np.ndarray:
    """uint8 images (N, 28, 28) to normalized features (N, 81, 7, 7) in float32."""
    step = jax.jit(lambda x: normalized(scattered(x)))
    parts = [
        np.asarray(step(images[i : i + CHUNK].astype(np.float32) / 255))
        for i in range(0, len(images), CHUNK)
    ]
    return np.concatenate(parts)
