"""Identities that somebody else vouches for: an issuer of tokens, an authority of certificates."""
