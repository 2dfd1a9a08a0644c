"""What one layer keeps of one sequence: keys and values, plain, within a window or packed, or a recurrent state."""
