"""The applications of examples/, started as their READMEs say."""
