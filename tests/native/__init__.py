"""Tests of the compiled extension, the mapped arrays and the BLAS binding."""
