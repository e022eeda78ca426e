"""Reports: who brought what and who got what, as one page, as figures for papers, as tables."""
