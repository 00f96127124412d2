"""OpenVINO: runs files of its target before they are written, in a process of their own."""
