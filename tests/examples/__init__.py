"""The applications in examples/, started as described in their READMEs."""
