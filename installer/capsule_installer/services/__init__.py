"""How units are stopped, started and asked, behind one Protocol."""
