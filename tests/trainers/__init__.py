"""Real steps of small models under the trainers of other libraries, a worker killed on the way."""
