"""Checks results: trains runs again, computes reports again, packs and unpacks artefacts."""
