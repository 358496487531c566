from superbloom.cli import main

main()
