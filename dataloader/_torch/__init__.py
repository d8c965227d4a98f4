"""What ``dataloader.torch`` is made of. Nothing else imports it, for it imports torch."""
