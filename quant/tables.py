"""Value tables of the non-linear types (ggml-common.h)."""

from __future__ import annotations

import numpy as np

# IQ4_NL, IQ4_XS: the sixteen levels
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)

# MXFP4: twice the E2M1 values; code 8 is minus zero, which ggml stores as 0
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)

# E8M0 exponent byte -> half its power of two: 2^(e - 128); the first two are subnormal
E8M0_HALF = np.array([*(0x200000, 0x400000), *((e - 1) << 23 for e in range(2, 256))], np.uint32).view(np.float32)
