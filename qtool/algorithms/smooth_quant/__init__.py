"""SmoothQuant (Xiao et al., 2022): activation ranges moved into the weights of linear layers."""
