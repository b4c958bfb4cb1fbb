"""Files that recipes put into an engine, as they are. None of them imports specaudit."""
