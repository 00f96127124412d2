"""Cross-layer equalization (Nagel et al., 2019): equal channel ranges across connected layers."""
