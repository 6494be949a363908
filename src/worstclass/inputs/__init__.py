"""What the library takes: names, radii, images and factories, checked in one place and at every door."""
