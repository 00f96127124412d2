"""Weight rounding by layer reconstruction: GPTQ (Frantar et al., 2022) with held-out damping."""
