"""What a capsule is made of, for people and programs that ask: bills of materials, provenance."""
