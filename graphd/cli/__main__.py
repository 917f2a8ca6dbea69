from graphd.cli import main

main()
