"""The decode megakernel: chip, mesh, weight layout, memory plan and schedule. See DESIGN.md."""
